"""What each page says, as plain data; one room per page."""
