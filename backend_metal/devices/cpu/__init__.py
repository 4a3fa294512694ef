"""CPUs: what they implement of ``Device``; and what Linux CPUs alone use, a BLAS and layers with
kernels of their own. No Mac uses those."""
