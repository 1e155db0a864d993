"""The data that passes between the rooms: tasks, programs, timelines, and jaxpr tools."""
