"""Run simulated histories by hand: `python -m tests.simulation --seed 7`, or many, until one breaks a promise."""

import argparse
import sys
import time

from tests.simulation import history

parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
parser.add_argument("--seed", type=int, default=1, help="the first seed")
parser.add_argument("--runs", type=int, default=1, help="how many seeds, one after the other")
parser.add_argument("--deaths", type=float, default=0.05, help="the share of the micro-batches in which a worker dies")
arguments = parser.parse_args()
for seed in range(arguments.seed, arguments.seed + arguments.runs):
    began = time.process_time()
    ended = history.History(seed, deaths=arguments.deaths).run()
    asked = sum(customer.asked for customer in ended.world.customers.values())
    dead = len(ended.platform.dead_letters())
    sys.stdout.write(
        f"seed {seed}: {len(ended.due)} due, {asked} requests, {dead} dead letters, {ended.platform.died} deaths, "
        f"{ended.lasted_s / 3600:.1f} h in {time.process_time() - began:.1f} s\n"
    )
    sys.stdout.flush()
