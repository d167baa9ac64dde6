# docker build -t asyncfl_bench .          (with a GPU: --build-arg TORCH_BACKEND=cu130)
# mkdir -p runs && docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/app/runs" asyncfl_bench afl-run algorithm=ace delay=exp_beta30
FROM python:3.13-slim

# the C++ compiler is for executor=native
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "uv>=0.7.14"

ARG TORCH_BACKEND=cpu
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY conf conf
COPY sweeps sweeps
RUN uv pip install --system --no-cache --torch-backend="$TORCH_BACKEND" .

# root would own the files of runs; --user names any other user, and its caches are in the same home folder
RUN useradd --create-home afl && chmod 1777 /home/afl && mkdir --mode=1777 /app
ENV HOME=/home/afl
USER afl
WORKDIR /app
CMD ["afl-run", "--help"]
