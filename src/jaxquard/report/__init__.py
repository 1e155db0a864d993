"""Tables, drawings and traces of schedules, steps and plans."""
