"""What is shipped, as it is shipped.

    shipped.py       the files: rendered, with their defaults filled in, and the graces they give
    stack.py         compose.yaml, brought up from a clean copy of the checkout
    engine/          a Docker engine and base images where there are none (its own page)
    handlers/        kinds that are mounted into the container
    k8s_rollout.py   a rollout on a real cluster, measured; run by hand

Static checks need the tools of requirements.txt (`make deploy-tools`); the others a Docker engine. In CI both are
there, or the tests fail.
"""
