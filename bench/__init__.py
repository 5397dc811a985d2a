"""What Talaria costs, measured in one run against what others cost."""
