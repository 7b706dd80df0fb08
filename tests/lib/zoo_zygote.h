/* The zoo as a zygote of standbys (core/child.h). Neither of these returns. */
#ifndef ZOO_ZYGOTE_H
#define ZOO_ZYGOTE_H

void zoo_zygote(void);
void zoo_refuse(const char *why);

#endif
