"""From records to an answer: tables, statistics, fronts, a recommendation and the page.

Everything here reads `headcount.study.records` and nothing else of the program, and never imports
torch: a report opens in a second.
"""
