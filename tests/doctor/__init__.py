"""Each bad condition is made, really; the doctor finds it; what it prints is run as it stands; it is gone."""
