"""Jobs: days and weeks of training, with what fails on the way."""
