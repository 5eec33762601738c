"""Many configurations, sources and masses as tasks on a cluster: ``lqcd campaign plan.toml``.

A task is one run of ``lqcd propagator``, with ``--resume``: what protects a single job (one writer, batches saved as they are
done, the final file made in one step, settings compared before anything is called finished) protects every task.

* :mod:`.plan` -- the plan file, and the tasks that follow from it
* :mod:`.task` -- one task, where Ray runs it
* :mod:`.driver` -- who runs when: Ray, retries, the end

Ray is imported when a campaign runs, never before.
"""
