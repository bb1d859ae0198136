"""`python -m tests.deploy.engine up | images | down`: the engine of these tests, by hand."""

import os
import sys

from tests.deploy.engine import docker, images

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["up"]:
            docker.start()
            mine = {name: value for name, value in docker.environment().items() if os.environ.get(name) != value}
            print(*(f"export {name}={value}" for name, value in mine.items()), sep="\n")
        case ["images"]:
            docker.start()
            print(*(f"not to be had: {image}" for image in images.ensure()), sep="\n")
        case ["down"]:
            docker.stop()
        case _:
            sys.exit(__doc__)
