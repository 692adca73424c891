"""Inference methods, one a file. Each is a function of the posterior that gives a Method.

BlackJAX is imported inside them: importing it starts JAX, and a script that has imported bnn_ppl
must still be able to say how many CPU devices JAX shall have.
"""

from bnn_ppl.methods.adjusted_mclmc import adjusted_mclmc
from bnn_ppl.methods.csgld import csgld
from bnn_ppl.methods.descent import descent
from bnn_ppl.methods.hmc import hmc
from bnn_ppl.methods.ivon import ivon
from bnn_ppl.methods.laplace import laplace
from bnn_ppl.methods.mc_dropout import mc_dropout
from bnn_ppl.methods.mclmc import mclmc
from bnn_ppl.methods.mfvi import mfvi
from bnn_ppl.methods.nuts import nuts
from bnn_ppl.methods.sghmc import sghmc
from bnn_ppl.methods.sgld import sgld
from bnn_ppl.methods.sgnht import sgnht
from bnn_ppl.methods.swag import swag
from bnn_ppl.methods.vogn import vogn

__all__ = [
    "adjusted_mclmc",
    "csgld",
    "descent",
    "hmc",
    "ivon",
    "laplace",
    "mc_dropout",
    "mclmc",
    "mfvi",
    "nuts",
    "sghmc",
    "sgld",
    "sgnht",
    "swag",
    "vogn",
]
