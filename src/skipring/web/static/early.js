// Runs before the page is drawn, so that a chosen theme does not flash up as the other one.
{
  const chosen = localStorage.getItem("skipring-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
