"""What a person sees of a run: one HTML file, or the same page served while the run goes on.

metrics.py reads metrics.jsonl, run_data.py a whole run directory into plain data (agents.py,
effects.py, state.py are its parts), payload.py several of them with their comparison. page.py makes
one self-contained HTML page of that, from the template, the style and the scripts in web/.
folder.py finds runs below a folder and lets nothing outside of it through, server.py serves them.
"""
