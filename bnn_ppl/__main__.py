"""``python -m bnn_ppl`` is ``bnn-ppl``."""

from bnn_ppl.cli import main

main()
