"""Inference methods, one per file: each is a function of a posterior that returns a Method.

Importing a method's file registers its description in ``METHODS``, where the command line, the
estimators and the tests find it (:mod:`bnn_ppl.methods.method` says how to add one). BlackJAX is
imported inside functions only: importing it initialises JAX, and a script that has imported bnn_ppl
must still be able to set the number of CPU devices.
"""

# One line per method, imported `as` itself, which marks it as public.
from bnn_ppl.methods.ensembles.descent import descent as descent
from bnn_ppl.methods.ensembles.swag import swag as swag
from bnn_ppl.methods.laplace_approximation.laplace import laplace as laplace
from bnn_ppl.methods.mcmc.adjusted_mclmc import adjusted_mclmc as adjusted_mclmc
from bnn_ppl.methods.mcmc.chees import chees as chees
from bnn_ppl.methods.mcmc.elliptical_slice import elliptical_slice as elliptical_slice
from bnn_ppl.methods.mcmc.hmc import hmc as hmc
from bnn_ppl.methods.mcmc.laps import laps as laps
from bnn_ppl.methods.mcmc.mclmc import mclmc as mclmc
from bnn_ppl.methods.mcmc.meads import meads as meads
from bnn_ppl.methods.mcmc.nuts import nuts as nuts
from bnn_ppl.methods.stochastic_gradient.amagold import amagold as amagold
from bnn_ppl.methods.stochastic_gradient.csgld import csgld as csgld
from bnn_ppl.methods.stochastic_gradient.kinetic_langevin import (
    kinetic_langevin as kinetic_langevin,
)
from bnn_ppl.methods.stochastic_gradient.sghmc import sghmc as sghmc
from bnn_ppl.methods.stochastic_gradient.sgld import sgld as sgld
from bnn_ppl.methods.stochastic_gradient.sgnht import sgnht as sgnht
from bnn_ppl.methods.stochastic_gradient.smile import smile as smile
from bnn_ppl.methods.tempering.parallel_tempering import parallel_tempering as parallel_tempering
from bnn_ppl.methods.tempering.tempered_smc import tempered_smc as tempered_smc
from bnn_ppl.methods.variational.ivon import ivon as ivon
from bnn_ppl.methods.variational.mc_dropout import mc_dropout as mc_dropout
from bnn_ppl.methods.variational.mfvi import mfvi as mfvi
from bnn_ppl.methods.variational.noisy_kfac import noisy_kfac as noisy_kfac
from bnn_ppl.methods.variational.svgd import svgd as svgd
from bnn_ppl.methods.variational.vogn import vogn as vogn
