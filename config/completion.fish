# Completion of @1 in fish. Words come from the program itself: `@1 __complete WORD...`.

function __@2_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l kept (string match -r '^.*=' -- $typed)
    set -l part (string replace -r '^.*=' '' -- $typed)
    set -l kind
    for line in ($words[1] __complete $words[2..-1] "$typed" 2>/dev/null)
        if string match -q ':*' -- $line
            set kind (string replace -r ' ?nospace$' '' -- (string sub -s 2 -- $line))
        else
            echo $line
        end
    end
    switch "$kind"
        case folders
            for path in (__fish_complete_directories "$part" '')
                echo "$kept$path"
            end
        case files
            for path in (__fish_complete_path "$part")
                echo "$kept$path"
            end
        case 'files *'
            set -l endings (string replace -a ' ' '|' -- (string sub -s 7 -- $kind))
            for path in (__fish_complete_path "$part")
                string match -qr "/\$|\.($endings)\$" -- (string split -f 1 \t -- $path)
                and echo "$kept$path"
            end
    end
end

complete -c @1 -f -a '(__@2_complete)'
