"""What operators see of Wattmesh: logs here; dashboards, rules and scrape configurations beside."""
