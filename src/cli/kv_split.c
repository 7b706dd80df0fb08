#include "cli/cmd_kv.h"

#include <ctype.h>
#include <string.h>

int kv_split(char *line, char **words, int max)
{
    char *out = line;
    int count = 0;

    while (*(line += strspn(line, " \t\r\n")) != '\0') {
        char quote = '\0';

        if (count == max) {
            return -1;
        }
        words[count++] = out;
        for (; *line != '\0' && (quote != '\0' || !isspace((unsigned char)*line)); line++) {
            if (*line == quote) {
                quote = '\0';
            } else if (quote == '\0' && (*line == '\'' || *line == '"')) {
                quote = *line;
            } else {
                line += *line == '\\' && quote != '\'' && line[1] != '\0';
                *out++ = *line;
            }
        }
        if (quote != '\0') {
            return -1;
        }
        /* The blank is read before the end of the word may take its place. */
        line += *line != '\0';
        *out++ = '\0';
    }
    return count;
}
