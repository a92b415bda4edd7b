"""What every Headrace service needs and none is about. The kit knows no service."""
