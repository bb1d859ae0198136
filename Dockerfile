# The image of the service.
#
#   docker build -t pg-supervisor .                              the service with the handlers/ of this folder
#   docker build --target runtime -t pg-supervisor:runtime .     without any: derive from it, or mount them
#
# EXTRAS        extras of pyproject.toml to install, comma separated.
# PIP_INDEX_URL where pip finds packages, if not where it does by itself. An address with a password does not
#               belong in an argument: give the build a secret, --secret id=pip.conf,src=$HOME/.config/pip/pip.conf
#
# How to bring one's own handlers: docs/operations.md.

FROM python:3.13-slim AS build
ARG EXTRAS="dashboard,nats,webhook"
ARG PIP_INDEX_URL
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv --without-pip /opt/supervisor
# What changes seldom comes first: a change of the code alone installs nothing again. Nothing is compiled.
COPY pyproject.toml constraints.txt ./
COPY scripts/requirements.py scripts/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,required=false \
    python scripts/requirements.py "$EXTRAS" > requirements.txt \
    && python -m pip --python /opt/supervisor/bin/python install --quiet --only-binary :all: \
       --constraint constraints.txt --requirement requirements.txt
COPY README.md LICENSE ./
COPY supervisor/ supervisor/
COPY deploy/docker/livez.py deploy/docker/
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf,required=false \
    python -m pip --python /opt/supervisor/bin/python install --quiet --no-deps . \
    && cp constraints.txt deploy/docker/livez.py /opt/supervisor/

FROM python:3.13-slim AS runtime
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="pg-supervisor" \
      org.opencontainers.image.description="Background jobs in PostgreSQL: jobs commit with your data, a supervisor runs them." \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 supervisor \
    && useradd --uid 10001 --gid 10001 --home-dir /app --no-create-home --shell /usr/sbin/nologin supervisor \
    && install --directory --owner 10001 --group 10001 --mode 0700 /run/supervisor
COPY --from=build /opt/supervisor /opt/supervisor
# In a container the health endpoints are for others to ask. Bytecode is there already, and nothing is written but
# in the run directory and /tmp: the root filesystem may be read-only.
ENV PATH="/opt/supervisor/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    SUPERVISOR_HEALTH_HOST=0.0.0.0 \
    SUPERVISOR_RUN_DIR=/run/supervisor
WORKDIR /app
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 9090 9180
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=1s --retries=3 \
    CMD ["/opt/supervisor/bin/python", "-IS", "/opt/supervisor/livez.py"]
# No shell in between: the parent is process 1, hears SIGTERM itself and reaps what handlers leave behind.
ENTRYPOINT ["supervisor"]
CMD ["run"]

FROM runtime AS service
COPY handlers/ handlers/
