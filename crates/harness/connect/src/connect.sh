# Runs in the POSIX shell of a place and ends as an exec-server there. Lines before it set
#   m: start of each line that is meant for the client; everything else on stdout is ignored
#   v: version of the client
#   mode: `shared` or `ephemeral`
#   want_x86_64, want_aarch64: digest, bytes and loader of the program for this architecture

say() { printf '%s %s\n' "$m" "$*"; }

# fail KIND TEXT: ends without leaving anything half-installed.
fail() {
  drop
  k=$1
  shift
  say "fail $k $(printf '%s' "$*" | tr '\n' ' ')"
  exit 1
}

drop() {
  for o in "$part" "$new" "$probe"; do
    [ -z "$o" ] || rm -f "$o"
  done
  # Not if it has another program, or another push.
  [ -z "$d" ] || rmdir "$d" 2>/dev/null
}

# The connection was cut, or somebody ends this shell. The next connection continues the push, but
# an ephemeral one leaves nothing.
interrupted() {
  trap '' HUP INT PIPE TERM
  [ "$mode" = ephemeral ] || part=
  drop
  exit 1
}

digest() {
  set -- $($tool <"$1")
  printf '%s' "$1"
}

bytes() {
  set -- $(wc -c <"$1")
  printf '%s' "$1"
}

# owned DIRECTORY: nobody else can change it.
owned() {
  set -- $(ls -ldn "$1" 2>/dev/null)
  case $1 in
  drwx------*) [ "$3" = "$uid" ] ;;
  *) false ;;
  esac
}

# private DIRECTORY: it exists, and nobody else can use it.
private() {
  { mkdir -p "$1" && [ ! -h "$1" ] && chmod 700 "$1" && owned "$1"; } 2>/dev/null
}

# usable DIRECTORY: programs can be stored and started there. Otherwise says why in `why`.
usable() {
  probe=$1/.probe.$$
  if ! private "$1"; then
    why="$why $1 is not writable,"
    return 1
  fi
  s=$(command -v sh)
  case $s in
  /*) ;;
  # A shell that is an applet of busybox has no path.
  *) s=/bin/sh ;;
  esac
  if ! (printf '#!%s\nexit 7\n' "$s" >"$probe") 2>/dev/null; then
    why="$why $1 is not writable,"
  else
    chmod 700 "$probe"
    r=7
    if [ -x "$s" ]; then
      ("$probe") 2>/dev/null
      r=$?
    fi
    rm -f "$probe"
    r2=$((size / 1024 * 2 + 1024))
    free=$(df -Pk "$1" 2>/dev/null | tail -n 1)
    free=$(set -- $free && printf '%s' "$4")
    if [ "$r" != 7 ]; then
      why="$why $1 does not allow programs (noexec),"
    elif [ "$free" -lt "$r2" ] 2>/dev/null; then
      why="$why $1 has $((free / 1024)) of $((r2 / 1024)) MiB free,"
    else
      return 0
    fi
  fi
  rm -f "$probe" 2>/dev/null
  rmdir "$1" 2>/dev/null
  return 1
}

# receive BYTES
receive() {
  if [ "$(printf ab | head -c 1 2>/dev/null)" = a ]; then
    head -c "$1"
  else
    dd ibs=1 obs=65536 count="$1" 2>/dev/null
  fi
}

# start PROGRAM HOW: becomes the program.
start() {
  say "run $2 $1"
  trap - HUP INT PIPE TERM
  umask "$mask"
  if [ "$mode" = ephemeral ]; then
    exec "$1" --ephemeral --listen stdio
  fi
  exec "$1" bridge
}

connect() {
  # What the server runs keeps the umask of the account.
  mask=$(umask)
  umask 077
  say shell
  d= part= new= probe= why=
  trap interrupted HUP INT PIPE TERM
  uid=$(id -u)
  # Nobody can make a directory below a file.
  home=${HOME:-/dev/null}
  set -- "${XDG_CACHE_HOME:-$home/.cache}/exec-server" "${TMPDIR:-/tmp}/exec-server-$uid" \
    "/var/tmp/exec-server-$uid" "/dev/shm/exec-server-$uid"

  p=$(command -v exec-server 2>/dev/null)
  case $p in
  /*)
    if [ "$("$p" bridge --check 2>/dev/null </dev/null)" = "exec-server-bridge $v" ]; then
      place_socket "$@"
      start "$p" found
    fi
    ;;
  esac

  a=$(uname -s 2>/dev/null)
  [ "$a" = Linux ] || fail system "$a"
  a=$(uname -m)
  case $a in
  x86_64 | amd64) a=x86_64 program=$want_x86_64 ;;
  aarch64 | arm64) a=aarch64 program=$want_aarch64 ;;
  *) program= ;;
  esac
  [ -n "$program" ] || fail architecture "$a"
  want=${program%% *} loader=${program##* }
  size=${program#* }
  size=${size%% *}
  [ "$loader" = static ] || [ -e "$loader" ] || fail libc "$loader"
  tool=
  for t in sha256sum 'busybox sha256sum' 'shasum -a 256' 'openssl dgst -sha256 -r'; do
    if command -v "${t%% *}" >/dev/null 2>&1; then
      tool=$t
      break
    fi
  done
  [ -n "$tool" ] || fail tool sha256sum

  for k in "$@"; do
    f=$k/exec-server-$want
    if [ -f "$f" ] && owned "$k"; then
      if [ "$(digest "$f")" = "$want" ]; then
        touch "$f" 2>/dev/null
        place_socket "$@"
        start "$f" kept
      fi
      say "note replacing $f, which was changed"
      rm -f "$f"
    fi
  done

  if [ "$mode" = ephemeral ]; then
    set -- "${TMPDIR:-/tmp}/exec-server-$uid.$$" "/var/tmp/exec-server-$uid.$$" \
      "/dev/shm/exec-server-$uid.$$" "$home/.exec-server.$$"
  fi
  for d in "$@"; do
    usable "$d" && break
    d=
  done
  [ -n "$d" ] || fail directory "${why%,}"

  z=plain
  command -v gzip >/dev/null 2>&1 && z=gzip
  say "need $a $z"
  read -r zsum zsize || interrupted
  # The program was compressed meanwhile. A failure of another connection may have removed the
  # directory.
  owned "$d" || usable "$d" || fail directory "${why%,}"

  # Continues what a connection that was cut has left, and removes what nobody will continue.
  live=
  for o in "$d"/*.part "$d"/*.new; do
    [ -f "$o" ] || continue
    q=${o%.*}
    if kill -0 "${q##*.}" 2>/dev/null; then
      case ${o##*/} in "$zsum".*.part) live=$o ;; esac
      continue
    fi
    case ${o##*/} in
    "$zsum".*.part)
      if [ -z "$part" ] && mv "$o" "$d/$zsum.$$.part"; then
        part=$d/$zsum.$$.part
        continue
      fi
      ;;
    esac
    rm -f "$o"
  done
  part=$d/$zsum.$$.part
  new=$d/exec-server-$want.$$.new
  # A shell that waits for a connection which was lost silently keeps its file. Another one that
  # still receives goes on as well: each writes into a file of its own.
  [ -f "$part" ] || [ -z "$live" ] || dd if="$live" of="$part" bs=65536 2>/dev/null || rm -f "$part"
  have=0
  if [ -f "$part" ]; then
    have=$(bytes "$part")
    if [ "$have" -gt "$zsize" ]; then
      rm -f "$part"
      have=0
    fi
  fi
  say "have $have"
  e=$( (receive $((zsize - have)) >>"$part") 2>&1) || fail write "$e"
  [ "$(bytes "$part")" = "$zsize" ] || interrupted
  [ "$(digest "$part")" = "$zsum" ] || fail digest "$part"
  if [ "$z" = gzip ]; then
    e=$( (gzip -dc <"$part" >"$new") 2>&1) || fail write "$e"
    rm -f "$part"
  else
    e=$(mv "$part" "$new" 2>&1) || fail write "$e"
  fi
  [ "$(digest "$new")" = "$want" ] || fail digest "$new"
  chmod 700 "$new"
  e=$("$new" bridge --check 2>&1 </dev/null)
  [ "$e" = "exec-server-bridge $v" ] || fail run "$e"

  if [ "$mode" = ephemeral ]; then
    # From here on the program has no name: nothing is left even if it is killed.
    exec 9<"$new"
    drop
    start /proc/self/fd/9 pushed
  fi
  f=$d/exec-server-$want
  e=$(mv -f "$new" "$f" 2>&1) || fail write "$e"
  find "$d" -name 'exec-server-*' -type f -mtime +30 -exec rm -f {} \; 2>/dev/null
  place_socket "$@"
  start "$f" pushed
}

# place_socket DIRECTORY…: a home that cannot be written to has no place for the socket of the
# background server. It is in the first of these directories then.
place_socket() {
  [ "$mode" = shared ] && [ -z "$EXEC_SERVER_SOCKET" ] || return 0
  if [ -n "$XDG_RUNTIME_DIR" ] && [ -w "$XDG_RUNTIME_DIR" ]; then
    return 0
  fi
  s=${XDG_STATE_HOME:-$home/.local/state}/exec-server/run
  mkdir -p "$s" 2>/dev/null
  [ -w "$s" ] && return 0
  for k in "$@"; do
    private "$k" && private "$k/run" || continue
    EXEC_SERVER_SOCKET=$k/run/server.sock
    export EXEC_SERVER_SOCKET
    return 0
  done
}

connect
