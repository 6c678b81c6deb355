"""Tasks: functions whose calls can be enqueued."""
