"""Published training steps, pipeline bubbles and memory against the model pricer.

In: CSV files of published figures, ours (`data`) or a user's.
Out: for every row the published figure beside ours (`PublishedResults`), a summary as JSON, and a page.
"""
