# ./dev build && docker build -t talaria .    (or podman build, or buildah build)
# docker run -d --name talaria --restart unless-stopped -p 127.0.0.1:8765:8765 -v talaria:/data -e OPENAI_API_KEY talaria
# docker exec -it talaria talaria setup
# docker exec -it talaria talaria chat
# From a registry of your own: docker build --build-arg PYTHON_IMAGE=registry.lan/python:3.12-slim -t talaria .
ARG PYTHON_IMAGE=python:3.12-slim

FROM $PYTHON_IMAGE AS build
# The one wheel of the last ./dev build.
COPY dist/talaria_gateway-*.whl /wheel/
RUN python -m venv /opt/talaria \
    && /opt/talaria/bin/pip install --no-cache-dir --disable-pip-version-check "$(echo /wheel/*.whl)[local,web,postgres,mcp]"

FROM $PYTHON_IMAGE
# The built-in model's runtime wants OpenMP.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home --home-dir /home/talaria talaria \
    && install --directory --owner talaria --group talaria --mode 0700 /data /files
COPY --from=build /opt/talaria /opt/talaria
# Inside, it listens for everyone; outside, whoever starts it says who reaches the port.
ENV PATH=/opt/talaria/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TALARIA_HOME=/data \
    TALARIA_CACHE=/data/cache \
    TALARIA_HTTP__HOST=0.0.0.0 \
    TALARIA_HTTP__PORT=8765 \
    TALARIA_HTTP__HOSTS=localhost:8765,127.0.0.1:8765
USER talaria
WORKDIR /home/talaria
VOLUME /data
EXPOSE 8765
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['TALARIA_HTTP__PORT'] + '/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--", "talaria"]
CMD ["serve"]
