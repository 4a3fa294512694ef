
for name in "$@"; do
    case " $names " in
    *" $name "*) ;;
    *) fail "there is no service $name here; there is: $names" ;;
    esac
done
names=${*:-$names}
