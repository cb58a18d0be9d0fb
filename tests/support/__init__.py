"""What several tests share: hosts that run the ops, models, and what a machine lacks."""
