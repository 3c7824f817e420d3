"""What a person sees of a run: one HTML file, or the same page served while the run trains.

metrics.py reads metrics.jsonl, agents.py joins it with the lineage, run_data.py turns a whole run
directory, or several with their comparison, into plain data. page.py makes one self-contained HTML
page of that, from the template, the style and the scripts in web/. server.py finds runs below a
folder, lets nothing outside of it through, and serves them. None of it loads torch.
"""
