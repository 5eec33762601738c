variable "region" {
  description = "Region of everything."
  type        = string
}

variable "name" {
  description = "Name of the launch template, and start of the other names."
  type        = string
  default     = "lqcd-bench"
}

variable "email" {
  description = "Address that gets the summaries (it must confirm once); empty for none."
  type        = string
  default     = ""
}

variable "vpc_id" {
  description = "Network of the instances; its subnets must reach the internet."
  type        = string
}

variable "subnet_id" {
  description = "Subnet of the instances, in an availability zone that has the instance type."
  type        = string
}

variable "instance_type" {
  description = "Type unless --instance-type names another."
  type        = string
  default     = "c7i.xlarge"
}

variable "image_parameter" {
  description = "Systems Manager parameter that holds the image; for accelerators that of an image with the vendor's driver and tools."
  type        = string
  default     = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
}

variable "disk_gib" {
  description = "Size of the root disk."
  type        = number
  default     = 64
}

variable "root_device" {
  description = "Root device of the image (/dev/xvda on Amazon Linux, /dev/sda1 on Ubuntu)."
  type        = string
  default     = "/dev/xvda"
}

variable "keep_days" {
  description = "Days until rows and logs are removed from the bucket."
  type        = number
  default     = 90
}
