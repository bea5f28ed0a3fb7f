#compdef @1
# Completion of @1 in zsh. Words come from the program itself: `@1 __complete WORD...`.

_@2_complete() {
	local -a lines whole partial whole_help partial_help
	local line word kind

	lines=("${(@f)$("${(Q)words[1]/#\~/$HOME}" __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
	for line in $lines; do
		word=${line%%$'\t'*}
		case $line in
		:*) kind=${line#:} ;;
		*[=:.]$'\t'*) partial+=("$word"); partial_help+=("${line/$'\t'/  }") ;;
		*) whole+=("$word"); whole_help+=("${line/$'\t'/  }") ;;
		esac
	done
	kind=${kind% nospace}
	(( $#whole )) && compadd -l -d whole_help -a whole
	(( $#partial )) && compadd -l -S '' -d partial_help -a partial
	case $kind in
	folders) compset -P '*='; _files -/ ;;
	files) compset -P '*='; _files ;;
	files\ *) compset -P '*='; _files -g "*.(${(j:|:)${=kind#files}})" ;;
	esac
}

# loaded by compinit from a file `_@2` in $fpath, or sourced
if [[ $funcstack[1] = _@2 ]]; then
	_@2_complete "$@"
else
	compdef _@2_complete @1
fi
