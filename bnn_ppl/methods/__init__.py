"""Inference methods, one per file: each is a function of a posterior that returns a Method.

Importing a method's file registers its description in ``METHODS``, where the command line, the
estimators and the tests find it (:mod:`bnn_ppl.methods.method` says how to add one). BlackJAX is
imported inside functions only: importing it initialises JAX, and a script that has imported bnn_ppl
must still be able to set the number of CPU devices.
"""

# One line per method, imported `as` itself, which marks it as public.
from bnn_ppl.methods.adjusted_mclmc import adjusted_mclmc as adjusted_mclmc
from bnn_ppl.methods.amagold import amagold as amagold
from bnn_ppl.methods.chees import chees as chees
from bnn_ppl.methods.csgld import csgld as csgld
from bnn_ppl.methods.descent import descent as descent
from bnn_ppl.methods.elliptical_slice import elliptical_slice as elliptical_slice
from bnn_ppl.methods.hmc import hmc as hmc
from bnn_ppl.methods.ivon import ivon as ivon
from bnn_ppl.methods.kinetic_langevin import kinetic_langevin as kinetic_langevin
from bnn_ppl.methods.laplace import laplace as laplace
from bnn_ppl.methods.laps import laps as laps
from bnn_ppl.methods.mc_dropout import mc_dropout as mc_dropout
from bnn_ppl.methods.mclmc import mclmc as mclmc
from bnn_ppl.methods.meads import meads as meads
from bnn_ppl.methods.mfvi import mfvi as mfvi
from bnn_ppl.methods.noisy_kfac import noisy_kfac as noisy_kfac
from bnn_ppl.methods.nuts import nuts as nuts
from bnn_ppl.methods.parallel_tempering import parallel_tempering as parallel_tempering
from bnn_ppl.methods.sghmc import sghmc as sghmc
from bnn_ppl.methods.sgld import sgld as sgld
from bnn_ppl.methods.sgnht import sgnht as sgnht
from bnn_ppl.methods.smile import smile as smile
from bnn_ppl.methods.svgd import svgd as svgd
from bnn_ppl.methods.swag import swag as swag
from bnn_ppl.methods.tempered_smc import tempered_smc as tempered_smc
from bnn_ppl.methods.vogn import vogn as vogn
