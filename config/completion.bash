# Completion of @1 in bash. Words come from the program itself: `@1 __complete WORD...`.

_@2_complete() {
	local -a words=()
	local i word glued= piece kept line kind= endings nospace= ending

	# bash splits words at `=` and `:`; the program wants whole words
	for ((i = 1; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ ${#words[@]} -gt 0 && ($glued || $word = [=:]) ]]; then
			words[-1]+=$word
		else
			words+=("$word")
		fi
		[[ $word = *[=:] ]] && glued=1 || glued=
	done
	piece=${COMP_WORDS[COMP_CWORD]}
	[[ $piece != [=:] ]] || piece=
	kept=${words[-1]%"$piece"}

	COMPREPLY=()
	while IFS= read -r line; do
		case $line in
		:*) kind=${line#:} ;;
		*)
			word=${line%%$'\t'*}
			COMPREPLY+=("${word#"$kept"}")
			;;
		esac
	done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete "${words[@]}" 2>/dev/null)

	[[ $kind != *nospace ]] || nospace=1
	kind=${kind%nospace}
	endings=${kind#files}
	case $kind in
	folders*) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$piece") ;;
	files*)
		if [[ $endings = *[a-z]* ]]; then
			for ending in $endings; do
				mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -X "!*.$ending" -- "$piece")
			done
			mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$piece")
		else
			mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$piece")
		fi
		;;
	esac
	[[ $kind != f* ]] || compopt -o filenames 2>/dev/null
	[[ -z $nospace ]] || compopt -o nospace 2>/dev/null
}

complete -F _@2_complete @1
