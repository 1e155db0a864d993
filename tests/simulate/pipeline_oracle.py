"""A second, independent player of pipelines, for the tests alone.

It shares no code with jaxquard: tasks are texts (`0F3`), and everything happens by events in a heap (`play_events`);
with synchronous sends, times are the smallest that meet all rules, found by trying until nothing moves
(`play_synchronous`). Memory is counted anew at every moment.
"""

import heapq
import itertools
import re
from collections import deque

# An actor's list: ("run", name, seconds, messages waited for) or ("send", message, target, seconds).
Lists = list[list[tuple]]


def split(text):
    stage, phase, microbatch = re.fullmatch(r"(\d+)([FBIW])(\d+)", text).groups()
    return int(stage), phase, int(microbatch)


def links_of(text, present):
    """The tasks of other stages that a task waits for, and those that wait for it."""
    stage, phase, microbatch = split(text)
    before, after = {
        "F": ([f"{stage - 1}F{microbatch}"], [f"{stage + 1}F{microbatch}"]),
        "B": ([f"{stage + 1}{p}{microbatch}" for p in "BI"], [f"{stage - 1}{p}{microbatch}" for p in "BI"]),
        "I": ([f"{stage + 1}{p}{microbatch}" for p in "BI"], [f"{stage - 1}{p}{microbatch}" for p in "BI"]),
        "W": ([], []),
    }[phase]
    return [task for task in before if task in present], [task for task in after if task in present]


def lists_of(rows: list[list[str]], time_s, transfer_s) -> Lists:
    """The lists of a schedule: each task waits for what other actors send, and sends what it makes at once."""
    home = {task: actor for actor, row in enumerate(rows) for task in row}
    lists = []
    for actor, row in enumerate(rows):
        found = []
        for task in row:
            before, after = links_of(task, home)
            found.append(("run", task, time_s(task), [name for name in before if home[name] != actor]))
            for name in after:
                if home[name] != actor:
                    found.append(("send", task, home[name], transfer_s(task, actor, home[name])))
        lists.append(found)
    return lists


def play_events(lists: Lists):
    """Returns (start, end) of each run by its name, and (start, end) of each message."""
    runs, messages, arrived = {}, {}, set()
    place, busy = [0] * len(lists), [False] * len(lists)
    queues, carrying = {}, set()
    events, counter = [], itertools.count()

    def push(time, kind, *what):
        heapq.heappush(events, (time, next(counter), kind, what))

    def feed(link, now):
        if link not in carrying and queues.get(link):
            message, seconds = queues[link].popleft()
            carrying.add(link)
            messages[message] = (now, now + seconds)
            push(now + seconds, "arrive", message, link)

    def advance(actor, now):
        while not busy[actor] and place[actor] < len(lists[actor]):
            step = lists[actor][place[actor]]
            if step[0] == "send":
                _, message, target, seconds = step
                queues.setdefault((actor, target), deque()).append((message, seconds))
                feed((actor, target), now)
                place[actor] += 1
            elif set(step[3]) <= arrived:
                runs[step[1]] = (now, now + step[2])
                busy[actor] = True
                place[actor] += 1
                push(now + step[2], "end", actor)
            else:
                return

    for actor in range(len(lists)):
        advance(actor, 0.0)
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "end":
            busy[what[0]] = False
        else:
            arrived.add(what[0])
            carrying.discard(what[1])
            feed(what[1], now)
        for actor in range(len(lists)):
            advance(actor, now)
    assert all(place[actor] == len(lists[actor]) for actor in range(len(lists))), "deadlock"
    return runs, messages


def play_synchronous(lists: Lists):
    """The same where an actor computes nothing while it sends or receives; sends and receives go side by side."""
    seconds = {step[1]: step[3] for row in lists for step in row if step[0] == "send"}
    rows = [[step for step in row if step[0] == "run"] for row in lists]
    start = {step[1]: 0.0 for row in rows for step in row}
    times = {step[1]: step[2] for row in rows for step in row}
    changed = True
    while changed:
        changed = False
        for row in rows:
            computed = sent = 0.0
            for _, name, time, waits in row:
                received = computed
                for message in waits:
                    received = max(received, start[message] + times[message]) + seconds[message]
                earliest = max(received, sent)
                if earliest > start[name]:
                    start[name], changed = earliest, True
                computed = start[name] + time
                sent = computed + seconds.get(name, 0.0)
    return {name: (start[name], start[name] + times[name]) for name in start}


def bytes_at(lives, time) -> int:
    """Counts the bytes of (start, end, size) that are there at a time."""
    return sum(size for start, end, size in lives if start <= time < end)


def lives_of(rows: list[list[str]], runs, messages, cost_of) -> list[list[tuple]]:
    """For each actor the (start, end, size) of all that it holds; `cost_of` gives the costs of a stage as a dict."""
    home = {task: actor for actor, row in enumerate(rows) for task in row}
    lives = [[] for _ in rows]
    for stage in sorted({split(task)[0] for task in home}):
        actor = home[f"{stage}F0"]
        lives[actor].append((0.0, float("inf"), cost_of(stage)["weight_bytes"] + cost_of(stage)["gradient_bytes"]))
    for task, actor in home.items():
        stage, phase, microbatch = split(task)
        cost = cost_of(stage)
        start, end = runs[task]
        working = "forward_working_bytes" if phase == "F" else "backward_working_bytes"
        lives[actor].append((start, end, cost[working]))
        _, after = links_of(task, home)
        if phase == "F":
            lives[actor] += _activations(stage, microbatch, start, end, cost, runs)
        for name in after:
            size = cost_of(min(stage, split(name)[0]))["output_bytes"]
            if home[name] != actor:
                lives[actor].append((end, messages[task][1], size))
            comes = messages[task][0] if home[name] != actor else end
            goes = runs[name][0] if phase == "F" else runs[name][1]
            lives[home[name]].append((comes, goes, size))
    return lives


def _activations(stage, microbatch, start, end, cost, runs):
    size = cost["activation_bytes"]
    if f"{stage}B{microbatch}" in runs:
        return [(start, runs[f"{stage}B{microbatch}"][1], size)]
    if f"{stage}I{microbatch}" in runs:
        between, last = runs[f"{stage}I{microbatch}"][1], runs[f"{stage}W{microbatch}"][1]
        return [(start, between, size), (between, last, cost["deferred_bytes"])]
    return [(start, end, size)]
