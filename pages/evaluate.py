"""Evaluate: many prompts instead of one sentence. What plans, and each head, change on a task, and how surely."""

import streamlit as st

from mha_core.ui import evaluate_export, evaluate_flips, evaluate_pruning, evaluate_results, evaluate_sweep
from mha_core.ui.ablation import site_choice
from mha_core.ui.evaluate_choice import choice_card
from mha_core.ui.sidebar import chosen_site, shared

run = shared()
site = chosen_site(run.trace)
st.title("Evaluate", anchor=False)
site_choice(run.trace, site)
asked = choice_card(run.model, site)
if asked is not None:
    names = list(asked.plans)
    evaluation = evaluate_results.results_card(asked)
    if evaluation is not None:
        evaluate_flips.flips_card(evaluation, names)
    sweep = evaluate_sweep.sweep_card(asked)
    pruning = evaluate_pruning.pruning_card(asked, sweep)
    evaluate_export.export_card(evaluation, names, sweep, pruning)
