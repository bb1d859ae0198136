"""A Docker engine for tests/deploy, where the machine has none.

    docker.py    an engine that is there is used; else one is put together from Debian's packages and started
    debian.py    packages of another Debian release, unpacked beside the system and not into it
    images.py    base images: pulled where a registry can be reached, else stand-ins made from packages
    stand_ins/   what the stand-ins need: the start of the PostgreSQL image

    python -m tests.deploy.engine up | images | down

Always true: nothing of the host is changed but for Debian packages (`PACKAGES` in docker.py), and all state is
in one directory, DEPLOY_ENGINE_DIR. An engine that somebody else started is never stopped. What is made of a
stand-in is the real Dockerfile and the real compose.yaml: only what they begin from is a stand-in.

Needed: Debian, root, and room for network bridges and overlay mounts (a virtual machine, or a privileged container).
"""
