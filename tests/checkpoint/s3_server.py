"""An S3 server on loopback that checks signatures, with one bucket, "bucket", and one user who may do everything. Prints its
port and the user's keys, then serves until the process that started it ends.

    s3_server.py PROCESS [PORT]      with a port: there, and any keys will do
"""

import json
import logging
import os
import sys
import time

if len(sys.argv) == 2:
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "3"  # before moto is imported: the first requests make the user
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["NO_PROXY"] = "127.0.0.1"

import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
process = int(sys.argv[1])
server = ThreadedMotoServer("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0, verbose=False)
server.start()
host, port = server.get_host_and_port()


def client(service, key, secret):
    return boto3.client(service, endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1",
                        aws_access_key_id=key, aws_secret_access_key=secret)


iam = client("iam", "first", "first")
iam.create_user(UserName="user")
everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="user", PolicyName="all", PolicyDocument=json.dumps(everything))
keys = iam.create_access_key(UserName="user")["AccessKey"]
client("s3", keys["AccessKeyId"], keys["SecretAccessKey"]).create_bucket(Bucket="bucket")
print(port, keys["AccessKeyId"], keys["SecretAccessKey"], flush=True)
while os.getppid() == process:
    time.sleep(0.05)
