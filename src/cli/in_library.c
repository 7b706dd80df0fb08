/*
 * The command inside the library (the option static_deps): two copies of OpenSSL would make a wheel
 * twice as large. src/cli/launcher.c is the program then.
 */
#include <muster/export.h>

#include "cli/cli.h"

/** What main() is in a program of its own. */
MUSTER_EXPORT int muster_command_run(int argc, char **argv);

int muster_command_run(int argc, char **argv)
{
    return cli_main(argc, argv);
}
