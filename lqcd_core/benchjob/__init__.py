"""Benchmarks on a rented machine: one instance, one sweep, rows in a bucket, a mail, and the instance is gone.

``lqcd bench-job submit`` launches an instance from a launch template with user data that installs the package, runs
``lqcd bench``, puts every row into S3 as soon as it is known and the whole log at the end, mails a summary through SNS and
shuts the machine down, which terminates it. Nothing waits at home: ``list``, ``tail``, ``fetch`` and ``cancel`` read the
bucket and the list of instances.

* :mod:`.record` -- what is kept in the bucket, and what state a job is in
* :mod:`.account` -- bucket, topic and launch template, from a stack or by name
* :mod:`.price` -- what a job can cost at most
* :mod:`.user_data` -- the script that the instance boots with
* :mod:`.runner` -- the program that runs there; it needs the standard library and boto3 only
* :mod:`.control` -- submit, list, tail, fetch, cancel
* ``infrastructure/`` -- the bucket, topic, role and template, as CloudFormation and as Terraform

``boto3`` is imported when a job is touched, never before.
"""
