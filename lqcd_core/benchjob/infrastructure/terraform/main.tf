# What lqcd bench-job needs; the same as the CloudFormation template beside this folder.

data "aws_ssm_parameter" "image" {
  name = var.image_parameter
}

resource "aws_s3_bucket" "jobs" {
  bucket_prefix = "${var.name}-"
}

resource "aws_s3_bucket_server_side_encryption_configuration" "jobs" {
  bucket = aws_s3_bucket.jobs.id
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "jobs" {
  bucket                  = aws_s3_bucket.jobs.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "jobs" {
  bucket = aws_s3_bucket.jobs.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "jobs" {
  bucket = aws_s3_bucket.jobs.id
  rule {
    id     = "forget-old-jobs"
    status = "Enabled"
    filter {
      prefix = "jobs/"
    }
    expiration {
      days = var.keep_days
    }
  }
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid       = "EncryptedTransportOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.jobs.arn, "${aws_s3_bucket.jobs.arn}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "jobs" {
  bucket = aws_s3_bucket.jobs.id
  policy = data.aws_iam_policy_document.bucket.json
}

resource "aws_sns_topic" "mails" {
  name_prefix  = "${var.name}-"
  display_name = "lqcd bench"
}

resource "aws_sns_topic_subscription" "mail" {
  count     = var.email == "" ? 0 : 1
  topic_arn = aws_sns_topic.mails.arn
  protocol  = "email"
  endpoint  = var.email
}

data "aws_iam_policy_document" "assume" {
  statement {
    effect  = "Allow"
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

# GetObject also serves the link in the mail, which is signed with this role.
data "aws_iam_policy_document" "instance" {
  statement {
    sid       = "RowsAndLogs"
    effect    = "Allow"
    actions   = ["s3:PutObject", "s3:GetObject"]
    resources = ["${aws_s3_bucket.jobs.arn}/jobs/*"]
  }
  statement {
    sid       = "Mail"
    effect    = "Allow"
    actions   = ["sns:Publish"]
    resources = [aws_sns_topic.mails.arn]
  }
}

resource "aws_iam_role" "instance" {
  name_prefix        = "${var.name}-"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "jobs" {
  name   = "jobs"
  role   = aws_iam_role.instance.id
  policy = data.aws_iam_policy_document.instance.json
}

resource "aws_iam_instance_profile" "instance" {
  name_prefix = "${var.name}-"
  role        = aws_iam_role.instance.name
}

resource "aws_security_group" "instance" {
  name_prefix = "${var.name}-"
  description = "lqcd bench - nothing in, web out"
  vpc_id      = var.vpc_id
  egress {
    description = "packages and the cloud's services"
    protocol    = "tcp"
    from_port   = 443
    to_port     = 443
    cidr_blocks = ["0.0.0.0/0"]
  }
  egress {
    description = "package mirrors of the operating system"
    protocol    = "tcp"
    from_port   = 80
    to_port     = 80
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_launch_template" "instance" {
  name                                 = var.name
  image_id                             = data.aws_ssm_parameter.image.value
  instance_type                        = var.instance_type
  instance_initiated_shutdown_behavior = "terminate"
  update_default_version               = true
  iam_instance_profile {
    arn = aws_iam_instance_profile.instance.arn
  }
  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }
  network_interfaces {
    device_index                = 0
    subnet_id                   = var.subnet_id
    associate_public_ip_address = true
    delete_on_termination       = true
    security_groups             = [aws_security_group.instance.id]
  }
  block_device_mappings {
    device_name = var.root_device
    ebs {
      volume_size           = var.disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }
}

# For people who submit jobs and may do nothing else; attach it to a user or a group.
data "aws_iam_policy_document" "submitter" {
  statement {
    sid       = "Objects"
    effect    = "Allow"
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = ["${aws_s3_bucket.jobs.arn}/jobs/*"]
  }
  statement {
    sid       = "Names"
    effect    = "Allow"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.jobs.arn]
  }
  statement {
    sid       = "Launch"
    effect    = "Allow"
    actions   = ["ec2:RunInstances"]
    resources = ["*"]
    condition {
      test     = "ArnEquals"
      variable = "ec2:LaunchTemplate"
      values   = [aws_launch_template.instance.arn]
    }
  }
  statement {
    sid       = "Tag"
    effect    = "Allow"
    actions   = ["ec2:CreateTags"]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["RunInstances"]
    }
  }
  statement {
    sid       = "Cancel"
    effect    = "Allow"
    actions   = ["ec2:TerminateInstances"]
    resources = ["*"]
    condition {
      test     = "StringLike"
      variable = "ec2:ResourceTag/lqcd-bench-job"
      values   = ["*"]
    }
  }
  statement {
    sid       = "Role"
    effect    = "Allow"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.instance.arn]
    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ec2.amazonaws.com"]
    }
  }
  statement {
    sid       = "Look"
    effect    = "Allow"
    actions   = ["ec2:DescribeInstances", "ec2:DescribeLaunchTemplateVersions", "pricing:GetProducts"]
    resources = ["*"]
  }
}

resource "aws_iam_policy" "submitter" {
  name_prefix = "${var.name}-submitter-"
  description = "Submit, watch and cancel lqcd bench jobs"
  policy      = data.aws_iam_policy_document.submitter.json
}
