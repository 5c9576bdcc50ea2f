"""The command `elmokit`: one file a command, which parses, calls the library and prints."""
