output "bucket" {
  description = "Bucket of rows and logs: --bucket."
  value       = aws_s3_bucket.jobs.bucket
}

output "topic" {
  description = "Topic of the mails: --topic."
  value       = aws_sns_topic.mails.arn
}

output "launch_template" {
  description = "Name of the launch template: --launch-template."
  value       = aws_launch_template.instance.name
}

output "submitter_policy" {
  description = "Policy for people who submit jobs."
  value       = aws_iam_policy.submitter.arn
}
