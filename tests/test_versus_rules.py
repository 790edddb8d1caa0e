"""Intervals in lockstep keep what they promise, and each check goes red when that is taken out of the code."""

from versus_rules import INTERVALS, LOCKSTEP, WORKER

test_interval_rule_holds, test_broken_interval_rule_goes_red = INTERVALS.tests()
test_lockstep_rule_holds, test_broken_lockstep_rule_goes_red = LOCKSTEP.tests()
test_worker_rule_holds, test_broken_worker_rule_goes_red = WORKER.tests()
