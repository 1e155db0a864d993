"""What people look at: tables, drawings, traces."""
