"""The drivers that come with this package, one module each; what each has to offer is said in driver.py."""
