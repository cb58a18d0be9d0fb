"""Code that several tests share: hosts that run the ops, models, and checks of the machine."""
