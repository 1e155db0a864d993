"""The page of CFP: its figures, headlines and claims beside ours, as HTML."""
