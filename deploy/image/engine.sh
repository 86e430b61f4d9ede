# Sourced by the scripts beside it. Sets `engine` (podman or docker), `global` (its global options) and `options` (of a build).
# shellcheck shell=sh disable=SC2034  # used where this is sourced

engine=$(command -v podman || command -v docker) || { echo "podman or docker is needed: apt install podman" >&2; exit 1; }
# IMAGE_BUILD_OPTIONS: more options for this machine's engine, such as "--ulimit nofile=1024:4096".
options=${IMAGE_BUILD_OPTIONS:-}
case $engine in
*podman) global=${IMAGE_PODMAN_OPTIONS:-} ;;
*)
    global=
    # Only of docker: podman has no daemon.
    said=$("$engine" info 2>&1 >/dev/null) || {
        echo "docker cannot be used ($said): start its daemon, let this login use it, or apt install podman" >&2
        exit 1
    }
    ;;
esac

# Set `base`: Debian's own image if a registry is reachable, else an image that mmdebstrap makes from Debian's packages.
find_base() {
    base=docker.io/library/debian:bookworm-slim
    if timeout 60 "$engine" pull --quiet "$base" >/dev/null 2>&1; then return; fi
    base=localhost/fanout-base:bookworm
    if "$engine" image inspect "$base" >/dev/null 2>&1; then return; fi
    command -v mmdebstrap >/dev/null || { echo "no registry is reachable, so mmdebstrap is needed: apt install mmdebstrap" >&2; exit 1; }
    echo "no registry is reachable: making the base image from Debian's packages (a minute, once) ..."
    mkdir -p build
    mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm build/base.tar
    "$engine" import build/base.tar "$base" >/dev/null
    rm build/base.tar
}

# save TAG FILE: write an image to an archive. docker has no --quiet for it, and is quiet anyway.
save() {
    case $engine in *podman) "$engine" save --quiet --output "$2" "$1" ;; *) "$engine" save --output "$2" "$1" ;; esac
}

# build TAG FILE [OPTION …]: build an image from the root of the project.
build() {
    tag=$1 file=$2
    shift 2
    echo "building $tag from $base (some minutes) ..."
    # shellcheck disable=SC2086  # options are words
    "$engine" $global build $options --build-arg "BASE=$base" "$@" --file "$file" --tag "$tag" .
    size=$("$engine" image inspect --format '{{.Size}}' "$tag")
    echo "$tag: $((size / 1000000)) MB"
}
