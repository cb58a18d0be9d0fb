"""What PyTorch needs to know of the ops besides the library: functions and rules for transforms."""
