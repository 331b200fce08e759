package main

import (
	"errors"
	"strings"

	"moerail/bench/micro"
	"moerail/cmd/moerail/internal/rounds"
	"moerail/moe"
	"moerail/peergroup"
)

// usageError is a fault of the arguments or of a file.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// wrongError says that the command ran and something was wrong. Its text is
// printed unless it is empty, because the output has said it already.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }

// exitCode is 2 for what the caller can mend in the arguments or the
// environment, else 1.
func exitCode(err error) int {
	var (
		usage  usageError
		option *rounds.OptionError
		micros *micro.ConfigError
		config *moe.ConfigError
		env    *peergroup.ConfigError
		child  *rounds.ChildError
	)
	switch {
	case errors.As(err, &usage), errors.As(err, &option), errors.As(err, &micros), errors.As(err, &config), errors.As(err, &env):
		return exitUsage
	case errors.As(err, &child) && child.Code == exitUsage:
		return exitUsage
	}
	return exitWrong
}

// oneLine joins the lines of a message: errors.Join puts one fault on each.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
