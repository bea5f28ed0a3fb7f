# Starts ranks, and starts them again from the last checkpoint: what mpirun and srun of this folder share. They set, and source this:
#   starter   the option that names another command, "--mpirun"
#   command   what starts ranks: `$command -n N EXE OPTION...`
#   ranks     an array, the numbers of ranks where no -n says them
# shellcheck shell=bash
: "${starter:?}" "${command:?}"
set -uo pipefail

say() { echo "launch: $*" >&2; }
usage() {
	say "$*"
	sed -n 's/^# usage: /launch: usage: /p' "$0" >&2
	exit 2
}

whole() { [[ $1 =~ ^[1-9][0-9]{0,5}$ ]]; }

restarts=10
while [ $# -gt 0 ]; do
	case $1 in
	-n | --restarts | "$starter") [ $# -gt 1 ] || usage "$1: a value is missing" ;;&
	-n)
		[[ $2 != *, ]] || usage "-n $2: a number of ranks is missing"
		IFS=, read -r -a ranks <<<"$2"
		shift 2
		;;
	--restarts)
		[ "$2" = 0 ] || whole "$2" || usage "--restarts $2: not a number from 0"
		restarts=$2
		shift 2
		;;
	"$starter")
		command=$2
		shift 2
		;;
	-*) usage "$1: no such option; those of the training follow its executable" ;;
	*) break ;;
	esac
done
[ ${#ranks[@]} -gt 0 ] || usage "-n: how many ranks?"
for n in "${ranks[@]}"; do
	whole "$n" || usage "-n $(IFS=,; echo "${ranks[*]}"): \"$n\" is no number of ranks"
done
[ $# -gt 0 ] || usage "no executable"

# option NAME ARGUMENT...: the last value of --NAME, as `--NAME VALUE` or `--NAME=VALUE`
option() {
	local name=--$1 value=
	shift
	while [ $# -gt 0 ]; do
		case $1 in
		"$name") value=${2-} ;;
		"$name="*) value=${1#"$name="} ;;
		esac
		shift
	done
	printf '%s' "$value"
}

folder=$(option save "$@")
[ -n "$folder" ] || usage "--save DIR is missing among the options of $1: there would be nothing to go on from"
has_global_batch() { # among the options, or in their file
	local config
	config=$(option config "$@")
	[ -n "$(option global-batch "$@")" ] ||
		{ [ -n "$config" ] && grep -qE '^[[:space:]]*global-batch[[:space:]]*=|"train_batch_size"[[:space:]]*:' "$config"; }
}
has_global_batch "$@" ||
	usage "--global-batch ROWS is missing among the options of $1: fewer ranks would make smaller steps"
[ -z "$(option resume "$@")" ] || usage "--resume among the options of $1: --resume=auto is added here"

newest() { # the last checkpoint's name, or nothing
	local last='' m
	for m in "$folder"/step-*/manifest.json; do
		[ -e "$m" ] && last=$(basename "$(dirname "$m")")
	done
	printf '%s' "$last"
}

# A signal ends the training, which saves; then this ends. mpirun and srun hand SIGUSR1 on and wait; after SIGTERM, which a second
# signal brings, Open MPI kills the ranks one second later.
child='' stopped='' woken=''
pass_on() {
	local signal=${stopped:+TERM}
	stopped=yes woken=yes
	[ -z "$child" ] || kill -s "${signal:-USR1}" "$child" 2>/dev/null
}
trap pass_on TERM INT USR1 HUP

at=0 tries=0 restarted=0
while :; do
	n=${ranks[$at]} before=$(newest) began=$SECONDS
	# shellcheck disable=SC2086 # the command is words
	$command -n "$n" "$@" --resume=auto &
	child=$!
	code=127
	while :; do # a signal ends `wait` before the child; who has been waited for is 127
		woken=''
		wait "$child"
		waited=$?
		[ -n "$woken" ] && [ "$waited" -ne 127 ] && code=$waited && continue
		[ "$waited" -eq 127 ] || code=$waited
		break
	done
	child=''
	# Stopped, MPICH may end with 0; to go on with a training that was over costs nothing.
	[ -z "$stopped" ] || exit $((code ? code : 75))
	[ "$code" -ne 0 ] || exit 0
	now=$(newest)
	case $code in
	75) exit 75 ;;                       # saved because a rank was told to end
	3 | 4 | 5 | 7 | 8) exit "$code" ;;    # would happen again
	6) [ "$now" != "$before" ] || exit 6 ;; # the data; but MPICH ends so, too, when it aborts a rank that lost another
	2) [ $restarted -gt 0 ] || exit 2 ;;
	esac
	say "$n ranks ended with exit code $code after $((SECONDS - began)) s; the last checkpoint: ${now:-none}"
	if [ "$code" -eq 2 ]; then
		tries=2 # this number does not fit
	else
		tries=$((tries + 1))
	fi
	if [ "$now" != "$before" ]; then
		at=0 tries=0
	elif [ $tries -ge 2 ]; then
		at=$((at + 1)) tries=0
	fi
	if [ $restarted -ge "$restarts" ] || [ $at -ge ${#ranks[@]} ]; then
		say "no further restart"
		exit "$code"
	fi
	restarted=$((restarted + 1))
	say "restart $restarted of $restarts, with ${ranks[$at]} ranks"
done
