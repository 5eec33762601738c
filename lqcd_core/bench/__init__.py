"""Speed, measured honestly: what ``lqcd bench`` and the asv suite stand on.

``work`` counts flops and bytes, ``case`` binds one measurement, ``machine`` finds what the machine can do, ``worker`` runs in
a process of its own, ``sweep`` measures rows in interleaved rounds and keeps them, ``table`` prints, ``plot`` draws,
``against`` measures a foreign program in turn with ours.
"""
