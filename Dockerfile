# tailerd in a container. Without Java and Spark: --build-arg JAVA=none (engine arrow only; tag it -arrow).
#
#   docker build -t tailerd:0.1.0 .
#   docker run --read-only --tmpfs /tmp -v state:/var/lib/tailerd -p 127.0.0.1:9464:9464 \
#     -v "$PWD/tailerd.yaml:/etc/tailerd/tailerd.yaml:ro" tailerd:0.1.0
#
# For callers outside the container the configuration needs http.listen: 0.0.0.0:9464, and a token.
# Python packages are pinned with their hashes in config/locks. The base is pinned to a release; give
# --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:... for the same bytes every time.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# An environment without pip: what changes least is installed first.
FROM ${PYTHON_IMAGE} AS build
ARG JAVA=17
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY config/locks/build.txt config/locks/arrow.txt config/locks/spark.txt locks/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes -r locks/build.txt \
    && python -m venv --without-pip /opt/tailerd \
    && /opt/build/bin/pip --python /opt/tailerd/bin/python install --no-deps --require-hashes -r locks/arrow.txt
# PySpark comes as sources: its wheel is made where setuptools is.
RUN if [ "$JAVA" != none ]; then \
      /opt/build/bin/pip wheel --no-deps --no-build-isolation --require-hashes -r locks/spark.txt -w /wheels; \
    fi
COPY pyproject.toml README.md ./
COPY tailerd tailerd
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation . -w /wheels \
    && /opt/build/bin/pip --python /opt/tailerd/bin/python install --no-index --no-deps /wheels/*.whl

FROM ${PYTHON_IMAGE} AS runtime
ARG PYTHON_IMAGE
ARG JAVA=17
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tailerd" \
      org.opencontainers.image.description="tail -f for lakehouse tables, as a daemon" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${PYTHON_IMAGE}"
# Debian drops superseded security releases of Java, so only its major version can be named. The base
# brings a pip, which nothing needs here.
RUN apt-get update \
    && if [ "$JAVA" != none ]; then java="openjdk-${JAVA}-jre-headless"; else java=""; fi \
    && apt-get install -y --no-install-recommends tini=0.19.* $java \
    && rm -rf /var/lib/apt/lists/* /usr/local/bin/pip* /usr/local/lib/python3.*/*-packages/pip*
# A user with a name: Spark asks for it.
RUN groupadd --gid 10001 tailerd \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tailerd \
    && install -d -o 10001 -g 10001 /var/lib/tailerd /etc/tailerd
COPY --from=build /opt/tailerd /opt/tailerd
COPY --chmod=755 config/entrypoint /usr/local/bin/entrypoint
# For Prometheus and Grafana: `docker cp`, or a volume that both mount.
COPY config/alerts.yaml config/grafana-dashboard.json /usr/share/tailerd/
ENV PATH=/opt/tailerd/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HEALTH_URL=http://127.0.0.1:9464/healthz
USER 10001:10001
WORKDIR /var/lib/tailerd
VOLUME ["/var/lib/tailerd"]
EXPOSE 9464
STOPSIGNAL SIGTERM
# Of another port, or of HTTPS: set HEALTH_URL. Kubernetes asks by its own probes.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['HEALTH_URL'], timeout=4)"]
ENTRYPOINT ["tini", "--", "entrypoint"]
CMD ["run", "--config", "/etc/tailerd/tailerd.yaml", "--log-format", "json"]
